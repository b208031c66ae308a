"""What clients manage besides responses: files, vector stores, containers, skills, prompts, conversations."""
