"""How far the scheduler's predictions are from packets, over random placements."""
