"""A worker's sending side: which chunk goes next, when it goes again, how much is under way."""
