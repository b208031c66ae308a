"""What is said: the Responses API as frozen values. No behaviour, and no import of ours."""
