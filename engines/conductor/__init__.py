"""Carries one claimed flow to its end: claims and their fence, commands to hosts, history and marks.

What decides over many moves lies in ``keeper``; what touches TaskFlow lies in ``taskflow``.
"""
