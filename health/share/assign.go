package share

import (
	"cmp"
	"hash/fnv"
	"slices"
)

// groups is the number of groups that targets are divided into. The targets of a group have the same
// probers, so that what a mass failure writes depends on the number of groups and not on that of
// hosts. More groups divide the probes among more hosts: with three probers, up to 48.
const groups = 16

// groupOf returns the group of a target's key, the same on every host.
func groupOf(key string) int { return int(mix(hash(key)) % groups) }

// assignment is which of the hosts probe each group. It is pure. The probers of a group are the hosts
// with the highest weights for it (rendezvous hashing), so a host that joins or leaves changes
// only the groups that it probes.
type assignment struct {
	count int // probers of each group
	nodes map[string]struct{}
	seats [groups][]seat // the probers of each group, by falling weight
}

// seat is a prober of a group. A lower rank has a higher weight.
type seat struct {
	node   string
	weight uint64
}

func newAssignment(count int) assignment {
	return assignment{count: count, nodes: map[string]struct{}{}}
}

// add adds a host and returns the groups with other probers than before. It costs O(groups).
func (a *assignment) add(node string) (changed []int) {
	if _, known := a.nodes[node]; known {
		return nil
	}
	a.nodes[node] = struct{}{}
	for g := range groups {
		s := seat{node, weight(g, node)}
		i, _ := slices.BinarySearchFunc(a.seats[g], s, compareSeats)
		if i == a.count {
			continue
		}
		a.seats[g] = slices.Insert(slices.Clone(a.seats[g]), i, s)
		a.seats[g] = a.seats[g][:min(len(a.seats[g]), a.count)]
		changed = append(changed, g)
	}
	return changed
}

// remove removes a host and returns the groups with other probers than before. It costs O(hosts) for
// each of them.
func (a *assignment) remove(node string) (changed []int) {
	if _, known := a.nodes[node]; !known {
		return nil
	}
	delete(a.nodes, node)
	for g := range groups {
		if a.rank(g, node) >= 0 {
			a.seats[g] = a.fill(g)
			changed = append(changed, g)
		}
	}
	return changed
}

// fill chooses the probers of a group among all hosts.
func (a *assignment) fill(group int) []seat {
	all := make([]seat, 0, len(a.nodes))
	for node := range a.nodes {
		all = append(all, seat{node, weight(group, node)})
	}
	slices.SortFunc(all, compareSeats)
	return slices.Clone(all[:min(len(all), a.count)])
}

// rank returns the position of a host among the probers of a group, or -1.
func (a *assignment) rank(group int, node string) int {
	return slices.IndexFunc(a.seats[group], func(s seat) bool { return s.node == node })
}

// probers returns the probers of a group by rank.
func (a *assignment) probers(group int) []string {
	out := make([]string, len(a.seats[group]))
	for i, s := range a.seats[group] {
		out[i] = s.node
	}
	return out
}

func compareSeats(a, b seat) int {
	return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.node, b.node))
}

// weight is that of a host for a group. Every release must compute the same.
func weight(group int, node string) uint64 {
	return mix(hash(node) + uint64(group+1)*0x9e3779b97f4a7c15)
}

func hash(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // never fails
	return h.Sum64()
}

// mix spreads a hash over all bits: the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
