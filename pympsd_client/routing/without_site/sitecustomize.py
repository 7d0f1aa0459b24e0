"""Do the .pth file's work if the folder of the packages is not a site directory of the Python under pympsd-run.

pip's --target and --prefix install packages into such a folder. Then pympsd-run puts this file's folder into
PYTHONPATH.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_packages = os.path.dirname(os.path.dirname(os.path.dirname(_here)))
if os.environ.get("PYMPSD_ROUTING") == "1":
    if _packages not in sys.path:
        sys.path.append(_packages)
    from pympsd_client.routing.hook import install

    install()
# Import the sitecustomize that this file hides.
_this = sys.modules.pop("sitecustomize")
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _here]
try:
    __import__("sitecustomize")
except ModuleNotFoundError:
    sys.modules["sitecustomize"] = _this
