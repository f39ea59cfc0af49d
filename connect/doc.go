// Package connect gives programs of this host the address of a backend when they connect to a virtual address, before the
// first packet: there is nothing to translate afterwards. It accelerates the dataplane beside it, which serves everyone else,
// and all that Left names.
//
// Its input is the table of frontends: Plane is a reconcile.Target with a loop of its own. Its outputs are the maps of eight
// BPF programs of a cgroup. It owns these programs, their maps, and what the programs note at sockets. It never changes
// addresses, rules or sockets of others; it ends connections only to backends that their frontend has no more. Programs and
// maps live as long as somebody has their descriptors, which systemd keeps: nothing is pinned. A change writes backends and
// slots under a new number before the entry with that number, so a program that runs meanwhile sees one table or the other.
//
// Read bpf/connect.c, then attach.go (programs, adoption), maps.go and plane.go (frontends), and sockets.go (connections).
package connect
