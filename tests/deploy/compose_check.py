"""compose_check.py FILE...: the compose specification's own verdict; runs in a venv with compose-spec and PyYAML."""
import json
import re
import sys

import compose_spec
import yaml

failed = False
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as f:
        text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", f.read())  # as compose does before it reads the file
    try:
        # merge keys are YAML's business; it resolves them first
        compose = compose_spec.PyCompose.from_json(json.dumps(yaml.safe_load(text)))
        compose.validate()
        compose.to_spec()
    except Exception as why:  # pylint: disable=broad-except
        failed = True
        print(f"{path}: {why}")
sys.exit(failed)
