"""What carries one claimed flow to its end: claims and their fence, commands to hosts, history and marks.

What decides over many moves is the keeper's and is not here; what touches TaskFlow is in ``taskflow``.
"""
