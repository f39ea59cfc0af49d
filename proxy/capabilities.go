package proxy

import "github.com/ironvip/ironvip/vip"

// Unsupported returns what the userspace proxy doesn't support in f on any host: a vip.Problem with
// code unsupported, or nil. Apply checks it first.
func Unsupported(f *vip.Frontend) error { return check(f) }
