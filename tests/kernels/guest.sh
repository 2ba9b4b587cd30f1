#!/usr/bin/bash
# What a guest does: the steps that it is given, each of which ends with a line
#   STEP name ok|FAILED seconds
# and lines of what is worth knowing:
#   FACT name value
# The rest explains a failure.
export LB_BIN=/usr/bin/lb LB_LAB_BIN=/usr/bin/lb-lab LB_TEST_REQUIRE=1 LB_TEST_PATIENCE=10 RUST_BACKTRACE=0 TMPDIR=/tmp

client=192.168.203.50 vip=192.168.203.110 shared=192.168.203.113 accepted=192.168.203.114 node=10.32.96.105
client6=fd00:203::50 vip6=fd00:203::110 node6=fd00:32::105

now() { cut -d' ' -f1 /proc/uptime; }

step() {
  local step=$1 begin status result
  shift
  begin=$(now)
  "$@" >/tmp/step 2>&1
  status=$?
  tail -n 60 /tmp/step | cut -c1-300 | sed 's/^/  | /'
  grep '^FACT ' /tmp/step
  if [ $status = 0 ]; then result=ok; else result=FAILED; fi
  echo "STEP $step $result $(echo "$begin $(now)" | awk '{ printf "%.1f", $2 - $1 }')"
  return $status
}

# Until a command succeeds, for three minutes at most: a verifier takes one where the machine is busy.
soon() {
  local end=$((SECONDS + 180))
  until "$@" >/tmp/soon 2>&1; do
    if [ $SECONDS -ge $end ]; then
      echo "not within three minutes: $*"
      cat /tmp/soon
      return 1
    fi
    sleep 0.2
  done
}

runs() { kill -0 "$(cat /tmp/lb.pid)" 2>/dev/null; }
ended() { ! runs; }
answers() { ended || lb status; }

# client (namespace c) - eth0 | lb | eth1 - backend (namespace b); by pairs of veth, or by NICs of the machine.
wires() {
  wires=${1:-veth}
  for name in c b; do
    ip netns add $name
    ip -n $name link set lo up
  done
  if [ "$1" = virtio ]; then
    while read -r module; do insmod "/modules/$module.ko"; done </modules/nics
    soon test -e /sys/class/net/eth3 || return 1
    ip link set eth2 netns c name c0
    ip link set eth3 netns b name b0
  else
    ip link add eth0 type veth peer name c0 netns c
    ip link add eth1 type veth peer name b0 netns b
  fi
  for name in eth0 eth1; do
    ip link set $name up
    ethtool -K $name gro on >/dev/null
  done
  for name in c b; do
    ip netns exec $name ethtool -K ${name}0 gro on tx off >/dev/null
    ip -n $name link set ${name}0 up
  done
  ip -n c address add $client/24 dev c0
  ip -n b address add $node/20 dev b0
  ip -n c address add $client6/64 dev c0 nodad
  ip -n b address add $node6/64 dev b0 nodad
}

config() {
  cat <<Y
version: 1
networks:
  mgmt: { role: mgmt, interface: eth1, prefixes: [10.32.96.0/20, "fd00:32::/64"], snat: [10.32.96.50, "fd00:32::50"] }
  tenant: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24, "fd00:203::/64"] }
pools:
  p: { network: mgmt, backends: ["$node:8443"] }
  p6: { network: mgmt, backends: ["[$node6]:8443"] }
services:
  plain: { network: tenant, listen: ["$vip:6443/tcp"], pool: p }
  plain6: { network: tenant, listen: ["[$vip6]:6443/tcp"], pool: p6 }
  shared: { network: tenant, listen: ["$shared:443/tcp"], sni: { routes: [ { names: [a.example], pool: p } ] } }
  accepted: { network: tenant, listen: ["$accepted:443/tcp"], sni: { late_binding: never, routes: [ { names: [a.example], pool: p } ] } }
Y
}

# Runs lb until it answers, with a web server behind it.
load() {
  wires "$1" || return 1
  config >/tmp/lb.yaml
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout /tmp/key.pem -out /tmp/certificate.pem -days 30 \
    -subj /CN=a.example 2>/tmp/openssl.log || cat /tmp/openssl.log
  mkdir -p /tmp/www
  head -c 1048576 /dev/urandom >/tmp/www/file
  lb check /tmp/lb.yaml
  lb run -c /tmp/lb.yaml >/tmp/lb.log 2>&1 &
  echo $! >/tmp/lb.pid
  soon answers
  local status=$?
  cat /tmp/lb.log /tmp/soon
  runs && [ $status = 0 ] || return 1
  (
    cd /tmp/www || exit
    ip netns exec b openssl s_server -quiet -WWW -accept '*:8443' -cert /tmp/certificate.pem -key /tmp/key.pem \
      >/tmp/server.log 2>&1 </dev/null &
  )
  soon ip netns exec b timeout 10 openssl s_client -connect $node:8443 || { cat /tmp/server.log; return 1; }
}

# The file through an address, asked for by name.
get() {
  ip netns exec c curl -sS -k --max-time 60 --resolve "a.example:$2:$1" "https://a.example:$2/file" -o /tmp/got &&
    cmp /tmp/got /tmp/www/file && echo "1 MiB through $1: the same bytes"
}

why() {
  cat /tmp/lb.log
  lb drops
  lb status
  return 1
}

tcp() {
  get $vip 6443 && get "[$vip6]" 6443 || why || return 1
  local modes
  modes=$(ip -o link show | awk '/xdpgeneric/ { print "generic" } / xdp / { print "native" }' | sort -u | tr '\n' ' ')
  echo "FACT $wires ${modes}IPv4 IPv6"
}

# XDP opens the connections, of a hello in one segment and of one in two, of which neither comes twice.
bind() {
  get $shared 443 || why || return 1
  local protocols
  protocols=$(printf '%0240d,' 1 2 3 4 5)0
  ip netns exec c timeout 20 openssl s_client -connect $shared:443 -servername a.example -alpn "$protocols" \
    >/tmp/client.log 2>&1 </dev/null || { cat /tmp/client.log; why; return 1; }
  lb status | tee /tmp/status
  awk '$1 == "shared" && $2 == 2 { found = 1 } END { exit !found }' /tmp/status || why || return 1
  lb status -o json | tee /tmp/status.json | grep -q '"repeated"' && { cat /tmp/status.json; return 1; }
  echo "FACT $wires bound"
}

# The process does, and hands it over.
hand_over() {
  get $accepted 443 || why || return 1
  ip netns exec c curl -sS -k --resolve b.example:443:$accepted https://b.example/file
  if [ $? != 35 ]; then
    echo "a name of no route was not refused by an alert"
    return 1
  fi
  lb status | tee /tmp/status
  awk '$1 == "accepted" && $5 >= 1 { found = 1 } END { exit !found }' /tmp/status || return 1
  echo "FACT $wires handed-over"
}

down() {
  kill "$(cat /tmp/lb.pid)"
  soon ended && lb down || return 1
  if [ "$1" = virtio ]; then
    rmmod virtio_net
  else
    ip link delete eth0
    ip link delete eth1
  fi
  ip netns delete c
  ip netns delete b
}

# lb refuses this kernel with one line that says why, before it tries to load anything.
refuse() {
  wires || return 1
  config >/tmp/lb.yaml
  if timeout 60 lb run -c /tmp/lb.yaml >/tmp/lb.log 2>&1; then
    echo "lb runs"
    return 1
  fi
  cat /tmp/lb.log
  grep -q "kernel $(uname -r).*5\.14" /tmp/lb.log && ! grep -q 'Verifier output' /tmp/lb.log
}

# Shows the lines of tests that have ended on the console as well.
shown() {
  local line
  while read -r line; do
    echo "$line"
    case $line in test\ *) echo "$line" >/dev/ttyS0 ;; esac
  done
}

# A test binary; the names of its tests, or none for all. Each that ends is shown on the console, whose end is all
# that is seen of a guest that is too slow.
suite() {
  local binary=$1 threads=$2 status
  shift 2
  "/usr/bin/$binary" "$@" --include-ignored --test-threads="$threads" --show-output 2>&1 | shown >/tmp/suite
  status=${PIPESTATUS[0]}
  grep -aE '^(test |lb_)' /tmp/suite | grep -av '\.\.\. ok$'
  [ $status = 0 ] || sed -n '/^failures:/,$p' /tmp/suite | head -n 50
  awk '/^test result/ { print "FACT '"$binary"' " $4 " of " $4 + $6 }' /tmp/suite
  awk '/^lb_nic:/ { print "FACT verified " $2 }' /tmp/suite
  return $status
}

netns() {
  suite netns 1 --exact \
    flows::request::a_request_to_the_vip_arrives_at_the_node_port \
    flows::request::backends_need_no_route_to_tenants_and_see_only_the_snat_address \
    proxy::sni::b1_three_names_have_three_certificates \
    proxy::bind::a_known_name_needs_no_process \
    proxy::bind_two::both_segments_go_to_the_backend \
    handoff::connections::b15_a_connection_is_handed_over_and_is_a_flow \
    operate::reload::a_service_or_a_source_that_is_removed_ends_its_flows \
    lifecycle::takeover::reliability_2_a_process_takes_over_and_nobody_is_refused \
    ip::extension::reliability_22_ipv6_extension_headers_are_dropped_and_counted
}

echo "FACT kernel $(uname -r)"
for name in "$@"; do
  case $name in
    load) step $name load || break ;;
    load-virtio) step $name load virtio || break ;;
    tcp | tcp-virtio) step $name tcp ;;
    bind | bind-virtio) step $name bind ;;
    hand-over | hand-over-virtio) step $name hand_over ;;
    down) step $name down ;;
    down-virtio) step $name down virtio ;;
    refuse) step refuse refuse ;;
    verifier) step verifier suite verifier 1 --exact every_program_stays_within_a_tenth_of_its_budget ;;
    packet) step packet suite packet 4 ;;
    netns) step netns netns ;;
    lab) step lab lb-lab --once ;;
    *) echo "STEP $name FAILED 0" ;;
  esac
done
