"""How the program of a network is written for its devices, whatever the function is that it computes."""
