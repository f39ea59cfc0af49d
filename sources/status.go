package sources

import "slices"

// KeyOfStatus returns the name of the source that a status is of.
func KeyOfStatus(s *Status) string { return s.Name }

// SameStatus reports whether two statuses are alike.
func SameStatus(a, b Status) bool {
	return a.Name == b.Name && a.Type == b.Type && a.Synced == b.Synced && a.Stale == b.Stale && a.Services == b.Services &&
		a.LastSync == b.LastSync && a.Restarts == b.Restarts && slices.Equal(a.Problems, b.Problems)
}
