"""A Ray cluster of several raylets on one machine: a head without the resource `box`, and two nodes that have it.

Says `cluster ADDRESS`, then does what it reads: `kill` (SIGKILL to the raylet that came last), `add`, `quit`. Runs in
the Python that has Ray.
"""

import sys

from ray.cluster_utils import Cluster

cluster = Cluster(
    initialize_head=True,
    head_node_args={"num_cpus": 1, "include_dashboard": "--dashboard" in sys.argv, "dashboard_port": 0},
)
nodes = [cluster.add_node(num_cpus=1, resources={"box": 1}) for _ in range(2)]
print("cluster", cluster.address, cluster.webui_url or "-", flush=True)
for line in sys.stdin:
    if line.strip() == "kill":
        cluster.remove_node(nodes.pop(), allow_graceful=False)
    elif line.strip() == "add":
        nodes.append(cluster.add_node(num_cpus=1, resources={"box": 1}))
    else:
        break
    print("done", line.strip(), flush=True)
cluster.shutdown()
