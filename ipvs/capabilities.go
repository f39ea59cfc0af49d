package ipvs

import "github.com/ironvip/ironvip/vip"

// Unsupported returns what the ipvs dataplane can't do of f on any host: a vip.Problem of
// code unsupported, or nil. Apply rejects the same.
func Unsupported(f *vip.Frontend) error { return unsupported(f) }
