"""Texts alone to pretrain on: what is taken out of them is what has to be said."""
