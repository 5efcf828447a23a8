import tempfile, sys
from pathlib import Path
from tests.servers import Server
from tests.torture.outages.run import *
name=sys.argv[1]; first=int(sys.argv[2]); n=int(sys.argv[3])
with tempfile.TemporaryDirectory() as f:
    with Server(name, Path(f,"told")) as server:
        for seed in range(first, first+n):
            try: print(seed, survive(plan_of(seed,name,len(KINDS[name]),messages=200), server, Path(f,str(seed)), deadline_secs=40, say=print), flush=True)
            except OutagesError as e: print("ERR", e); break
