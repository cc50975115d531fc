"""Changes of the code that are built in together and switched on one at a time: for mutate.py and faulty.py."""
