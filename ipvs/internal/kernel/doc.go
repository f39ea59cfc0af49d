// Package kernel speaks to the kernel's IPVS: it changes and reads services and
// destinations over generic netlink (family IPVS), and reads the connections of
// all services from /proc.
//
// Conn sends messages that the caller builds with AppendCommand, AppendService and
// AppendDest. Service, Dest and State are what the kernel keeps, as comparable
// values. The package decides nothing: what should be in the kernel, and what is
// ours, is package ipvs' business.
package kernel
