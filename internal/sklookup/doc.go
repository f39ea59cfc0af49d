// Package sklookup makes the kernel pass the clients of many addresses and ports to a few sockets.
//
// It attaches a BPF program of type sk_lookup to this process's network namespace. The kernel runs it
// for a packet that belongs to no open connection. Its input is a map from address, port and protocol
// to a Slot, and a map from a Slot to a socket. Packets of other addresses and ports are not affected.
//
// Program, link and maps exist for as long as a process has their descriptors: nothing is pinned, so
// nothing is left to remove. Files returns the descriptors for another process, which passes them to
// Open. The package opens no sockets and knows no services.
//
// Read program.go, then table.go. Linux 5.9 and later.
package sklookup
