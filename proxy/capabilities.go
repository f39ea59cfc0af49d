package proxy

import "github.com/ironvip/ironvip/vip"

// Unsupported says what the userspace proxy can't do of what f asks for,
// whatever the host: a vip.Problem of code unsupported, or nil. Apply asks it
// first.
func Unsupported(f *vip.Frontend) error { return check(f) }
