"""serve.py MODULE ADDRESS PORT: answers HTTP there with a module's WSGI application, eight requests at a time."""

import importlib
import sys

from cheroot import wsgi

module, address, port = sys.argv[1:]
# The services parse the command line themselves.
sys.argv = [module]
application = importlib.import_module(module).application
wsgi.Server((address, int(port)), application, numthreads=8).start()
