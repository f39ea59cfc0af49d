package roster

// Format is a number of a format of the fleet's tree, from 0. A release that stores a new field or a new
// kind of value in the tree has a new format, and writes it only once Roster.Format says that all hosts
// read it. A release before that keeps the former value of a key that it can't read, and misses the
// change.
type Format int

// Moves is the first format with the moves of VIPs, which announce/nodes stores.
const Moves Format = 1

// NewestFormat is the newest one that this release reads.
const NewestFormat = Moves

// Format returns the newest format that every host reads: those that are present, and those that are
// lost, which can come back with the release that they had. It costs O(hosts).
func (r *Roster) Format() Format {
	format := r.want.Format
	for _, row := range r.rows.Rows().All() {
		format = min(format, row.Value.Format)
	}
	for _, row := range r.lost.Rows().All() {
		format = min(format, row.Value.Format)
	}
	return format
}
