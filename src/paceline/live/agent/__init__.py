"""The agent inside a training process: sender and custodian of one worker, over UDP."""
