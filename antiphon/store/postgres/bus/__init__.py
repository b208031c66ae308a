"""An optional message bus, Redis or Valkey. It delivers new events of runs to the processes whose
clients read these runs."""
