"""HTTPS, server-sent events and long poll.

Nothing is imported here: the search process takes two modules of this package and none of the rest.
"""
