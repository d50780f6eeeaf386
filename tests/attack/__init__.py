"""Attacks: wrong messages, kills, cuts, clients that take all, foreign tokens, scripts."""
