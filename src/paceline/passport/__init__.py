"""Bit passports: a hash of every reduced tensor, kept while a job runs, and two runs compared by them."""
