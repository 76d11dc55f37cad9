"""serve.py MODULE PORT: answers HTTP on a local port with a module's WSGI application, eight requests at a time."""

import importlib
import sys

from cheroot import wsgi

module, port = sys.argv[1:]
# The services parse the command line themselves.
sys.argv = [module]
application = importlib.import_module(module).application
wsgi.Server(("127.0.0.1", int(port)), application, numthreads=8).start()
