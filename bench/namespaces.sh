# Network namespaces joined by a bridge, one a rank, both ends of each link shaped with tc. For scripts that set `ranks`
# and `rate` before they source it, and call set_up and tear_down. Needs root.
readonly prefix=capbench$$

tear_down() {
  jobs -p | xargs -r kill 2>/dev/null || true
  for ((rank = 0; rank < ranks; ++rank)); do ip netns delete "$prefix-$rank" 2>/dev/null || true; done
  ip link delete "cb$$" 2>/dev/null || true
  rm -rf "$work"
}

# Shaped is what a process sends, and what it receives.
set_up() {
  ip link add "cb$$" type bridge
  ip link set "cb$$" up
  for ((rank = 0; rank < ranks; ++rank)); do
    ip netns add "$prefix-$rank"
    ip link add "cb$$v$rank" type veth peer name eth0 netns "$prefix-$rank"
    ip link set "cb$$v$rank" master "cb$$" up
    ip -n "$prefix-$rank" address add "10.231.0.$((rank + 1))/24" dev eth0
    ip -n "$prefix-$rank" link set eth0 up
    ip -n "$prefix-$rank" link set lo up
    tc -n "$prefix-$rank" qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 200ms
    tc qdisc add dev "cb$$v$rank" root tbf rate "$rate" burst 256kb latency 200ms
  done
}

# in_namespace RANK COMMAND... &: one rank of a run.
in_namespace() {
  exec env RANK=$1 LOCAL_RANK=0 WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.231.0.1 MASTER_PORT=29517 \
    GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1 ip netns exec "$prefix-$1" "${@:2}"
}
