package ipam

// addressBand returns how many addresses, from a range's lowest on, are left
// for services that ask for one by number: min(max(16, size/16), 256), and
// none in a range of 16 or fewer (Kubernetes' KEP-3070). Size counts the
// network and broadcast addresses.
func addressBand(size uint64) uint64 { return band(size, 16, 256) }

// nodePortBand is the same for node ports: min(max(16, size/32), 128)
// (KEP-3668), so 86 of the 2768 ports from 30000 to 32767.
func nodePortBand(size uint64) uint64 { return band(size, 32, 128) }

func band(size, share, most uint64) uint64 {
	if size <= 16 {
		return 0
	}
	return min(max(16, size/share), most)
}
