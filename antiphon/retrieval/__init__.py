"""How texts are cut and found again: chunks, vectors near each other, rankings made one."""
