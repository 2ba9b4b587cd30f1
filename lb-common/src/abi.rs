//! The version of everything that outlives a process: pinned maps and their layouts.

/// Version of the pinned state; part of the pin folder's name.
///
/// History, one line per change:
/// - 1: first layout (networks, services, backends, flows, free ids, counters, registry).
/// - 2: rule sets; longer records of networks and services; more networks; longer names.
/// - 3: flags and budgets in those records; usage, rings of flows, flow events, drop samples; answers
///   have counters of their own.
/// - 4: time of flow events; a flag of the network that turns them on.
/// - 5: MTU and MSS in the records of networks; fragments, IP identifications, echo replies.
///   Later, without a number of its own: local peers. A map that is only added is made, empty, by a
///   start over pins without it, and an older `lb` leaves it alone. A flag of stopped networks: an older
///   `lb` writes these records without it.
/// - 6: splices, and flows that are sockets' ports: other bits of the flow's word.
///   Before any release, a splice's name gave two bytes of its length to the backend's segment size.
///   Later, without a number of its own: labels, clients and rules of IPv6, which are maps of their own; the
///   number of a network's SNAT addresses of IPv6 in its flags; the version in an address' key; the client at
///   the end of a flow event. An older `lb` knows nothing of it, so IPv6 goes out of the file before a downgrade.
///   And quotas and banks, likewise maps of their own.
///   Records of datagrams in pieces in another map, DATAGRAMS; the pin of FRAGMENTS stays until `lb down`, unused.
///   Later, without a number of its own: what the ends of a flow have pending, a map of its own; a doubt in the flags
///   of the flow's word. An older `lb` takes a flow in doubt for one that goes on, whose id may rest at its end.
///   Rates, contacts and stations, which are maps of their own; rules for stations that are no sources, which an
///   older `lb` takes for none; the link among the rules of destinations, which an older `lb` lets pass as it did.
///   Samples of each network, in another map, DROP_SAMPLES; the pin of SAMPLES stays until `lb down`, unused.
///   The mark of a service's record, which an older `lb` leaves 0: then it is not looked at.
///   How a service chooses among its backends, flags that an older data plane takes for none; turns and shares behind the
///   ids of a table; flows of each backend, a map of its own.
///   How backends answer SYNs, likewise; which backends a connection without an answer has had, where its entry has the
///   client's acknowledgment later. An older data plane leaves such a connection with the backend that it has then.
///   The most flows of a backend, in bytes of its record that were 0.
///   The backends that clients have had, a map of its own; for how long, above the flags of a service, which an older data
///   plane does not look at; the pool and the backends with a share behind the shares of a table.
/// - 7: the request index in lines of tagged ids, FLOW_LINES with a key of their own, in the place of FLOW_INDEX; splices of
///   64 bytes by numbers, BINDINGS by flow id, and the names in a map of their own; more SNAT addresses in the record of a
///   network; DOORS, one look-up for network and address.
///   Later, without a number of its own: flows that the data plane binds, whose numbers stand in BINDINGS, and the maps SERVER_NAMES
///   and CLONES for them. An older data plane resets such flows; an older `lb` beside a new data plane shows no numbers of them.
///   Before any release, longer records of COOKIES and HELLO_SLOTS, five more numbers in front of the places of a ring, and two more bits
///   for the flags of a service, so fewer for the time that its clients keep their backends.
pub const ABI_VERSION: u32 = 7;
