// Package metallb converts the resources of MetalLB: IPAddressPool, L2Advertisement, BGPAdvertisement, BGPPeer, BFDProfile
// and Community, as YAML. Pools and routers become those of ironvip.toml; Services need no conversion, because the source
// kubernetes reads them.
package metallb
