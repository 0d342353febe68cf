"""The switch: the program, its memory, what it does with gradients, and SwitchML's own."""
