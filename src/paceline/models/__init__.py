"""What a training iteration computes and sends: published models, and profiles, measured or from traces."""
