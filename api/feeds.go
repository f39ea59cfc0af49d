package api

import "github.com/ironvip/ironvip/internal/table"

// eachChange calls with for the newest value of each row of a feed that has changed since the last call,
// or the last value of a deleted one. The first call has all rows.
func eachChange[K comparable, V any](feed *table.Feed[K, V], with func(*V)) {
	for batch, _ := feed.TryNext(); len(batch) > 0; batch, _ = feed.TryNext() {
		for i := range batch {
			with(&batch[i].Value)
		}
	}
}
