"""Attacks on a server: wrong messages, kills, cuts, clients that take all, foreign tokens."""
