"""Real processes of a controller, an agent and jobs, under SIGKILL; ``world.py`` says what is checked."""
