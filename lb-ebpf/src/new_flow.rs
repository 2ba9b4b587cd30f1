//! A new flow: lookup -> policy -> select -> allocate.

pub(crate) mod affinity;
pub(crate) mod policy;
pub(crate) mod redispatch;
mod select;

use lb_common::{
    conntrack::FlowState,
    maps::{backend::Backend, flow::FlowKey, network::Network, quota, service::Service},
    verdict::DropReason,
    wire::Frame,
};
use network_types::ip::IpProto;

use crate::{
    counts, emit,
    flow::{
        allocate, budget,
        entry::{Entry, NewFlow, frame_bytes, segment},
    },
    ip::version::IpVersion,
    lookup::{self, NetworkRef},
};

/// lookup and policy: the service of a packet with this header and key, if its source may use it.
#[inline(always)]
pub(crate) fn admit(
    ip: &impl IpVersion,
    key: &FlowKey,
    network: &Network,
) -> Result<Service, DropReason> {
    let service = lookup::record(key).ok_or(DropReason::NoService)?;
    count_refusal(&service, policy::admit(key.network, network, &service, ip))?;
    Ok(service)
}

/// Counts for the service what refuses a packet to it.
#[inline(always)]
fn count_refusal<T>(service: &Service, end: Result<T, DropReason>) -> Result<T, DropReason> {
    if let Err(reason) = &end {
        counts::lb_note_refused(u32::from(service.id), *reason as u32);
    }
    end
}

/// Whether a packet may open a flow.
#[inline(always)]
pub(crate) fn opens<I>(frame: &Frame<'_, I>) -> bool {
    !frame.is_tcp() || segment(frame).opens()
}

/// A flow that this packet has opened.
pub(crate) struct Opened {
    pub(crate) entry: Entry,
    /// Generation of the entry.
    pub(crate) generation: u32,
    pub(crate) flow: NewFlow,
    pub(crate) backend: &'static Backend,
    /// The backend's.
    pub(crate) network: NetworkRef,
}

/// select and allocate.
#[inline(always)]
pub(crate) fn begin<I: IpVersion>(
    frame: &Frame<'_, I>,
    key: &FlowKey,
    network: &Network,
    service: &Service,
) -> Result<Opened, DropReason> {
    count_refusal(service, open(frame, key, network, service))
}

/// select and allocate, for what the client of the first service has sent behind a SYN with the number `isn`, which goes to the
/// pool of the second one; `bind` makes the word of the entry, whose binding it writes. Gives the id of the flow.
#[inline(always)]
pub(crate) fn bind<I: IpVersion>(
    frame: &Frame<'_, I>,
    key: &FlowKey,
    network: &Network,
    services: (&Service, &Service),
    isn: u32,
    bind: impl Fn(&Entry, FlowState) -> FlowState,
) -> Result<u32, DropReason> {
    let opened = allocate(frame, key, network, services, (isn, true), bind)?;
    Ok(opened.entry.id)
}

#[inline(always)]
fn open<I: IpVersion>(
    frame: &Frame<'_, I>,
    key: &FlowKey,
    network: &Network,
    service: &Service,
) -> Result<Opened, DropReason> {
    if !opens(frame) {
        return Err(DropReason::NoFlow);
    }
    let isn = segment(frame).sequence;
    let publish = |_: &Entry, claimed: FlowState| claimed.publish();
    let opened = allocate(
        frame,
        key,
        network,
        (service, service),
        (isn, false),
        publish,
    )?;
    if service.source_timeout() != 0 {
        affinity::lb_remember(opened.entry.id);
    }
    Ok(opened)
}

/// A flow of the client of the first service to a backend that the second one chooses; with the number of the client's SYN, and
/// whether it has returned a cookie.
#[inline(always)]
fn allocate<I: IpVersion>(
    frame: &Frame<'_, I>,
    key: &FlowKey,
    network: &Network,
    (service, chosen): (&Service, &Service),
    (isn, is_shown): (u32, bool),
    publish: impl Fn(&Entry, FlowState) -> FlowState,
) -> Result<Opened, DropReason> {
    let client_mac = frame.ethernet.source.get();
    if !client_mac.is_of_station() {
        return Err(DropReason::GroupSource);
    }
    budget::check(key.network, network, service)?;
    let (backend_id, backend) = select::select(chosen, key)?;
    budget::check_quota(key.network, quota::bank(backend.network, I::IS_IPV6))?;
    let to = NetworkRef::new(backend.network, emit::check(frame, backend.network)?);
    if !lookup::is_current(key, service) {
        return Err(DropReason::FlowRace);
    }
    let flow = NewFlow {
        backend: backend.address,
        backend_port: backend.port,
        backend_id,
        service: service.id,
        client_mac,
        isn,
        bytes: frame_bytes(frame),
        is_shown,
    };
    let udp = key.protocol == IpProto::Udp as u16;
    let (entry, generation) = allocate::allocate(to, frame.ip, key, udp, &flow, publish)?;
    Ok(Opened {
        entry,
        generation,
        flow,
        backend,
        network: to,
    })
}
