// Package usage records the frontends of a dataplane in the kernel, and counts what
// they share: virtual addresses, hairpin elements and tunnel devices. It also
// defines the normal form of what these dataplanes program of a frontend. It is pure code.
package usage
