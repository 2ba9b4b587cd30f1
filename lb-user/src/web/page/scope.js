// Which services, pools and interfaces concern a network: what the choice of a network leaves in each section.

// What concerns the network of this name in an overview; null stands for all networks.
export class Scope {
  constructor(overview, network) {
    this.network = network;
    const { networks } = overview.status;
    const chosen = networks.find((one) => one.name === network);
    this.interface = chosen?.interface;
    this.services = new Set();
    this.pools = new Set();
    this.snatNetworks = new Set([network]);
    for (const quota of chosen?.quotas ?? []) this.snatNetworks.add(quota.backends);
    if (network === null) return;
    const served = new Set(servedFrom(networks, network));
    for (const service of overview.services) {
      if (service.network === network) this.services.add(service.name);
      if (service.network !== network && !served.has(service.network)) continue;
      for (const pool of service.pools) this.pools.add(pool);
    }
  }

  hasNetwork(name) {
    return this.network === null || name === this.network;
  }

  hasService(name) {
    return this.network === null || this.services.has(name);
  }

  hasPool(name) {
    return this.network === null || this.pools.has(name);
  }

  hasSnatOf(name) {
    return this.network === null || this.snatNetworks.has(name);
  }

  // Whether an event's object is of the network: `backend POOL/NAME`, `pool NAME`, `service NAME`, and so on.
  hasObject(object) {
    if (this.network === null) return true;
    const space = object.indexOf(" ");
    const name = object.slice(space + 1);
    switch (object.slice(0, space)) {
      case "backend":
        return this.pools.has(name.slice(0, Math.max(0, name.indexOf("/"))));
      case "pool":
        return this.pools.has(name);
      case "service":
        return this.services.has(name);
      case "network":
        return name === this.network;
      case "interface":
        return name === this.interface;
      default:
        return false;
    }
  }
}

// The networks of clients whose backends are all in this network.
export function servedFrom(networks, network) {
  const isServed = ({ quotas }) =>
    quotas.length > 0 && quotas.every((quota) => quota.backends === network);
  return networks.filter(isServed).map((one) => one.name);
}
