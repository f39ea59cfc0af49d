// Package remains finds and removes what an announcer that no longer runs has left in the kernel: the
// gate of layer 2, the changed arp_announce of interfaces, and the routes for a router on the host. The
// announcer leaves them for its next run. It never changes what a running announcer has.
package remains

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"

	"github.com/ironvip/ironvip/announce/l2"
	"github.com/ironvip/ironvip/announce/routes"
)

// Record returns the file with the former settings of interfaces, of the announcer with a socket.
func Record(socket string) string { return filepath.Join(filepath.Dir(socket), "arp-announce") }

// Remains are what was found.
type Remains struct {
	l2.Remains
	Routes []netip.Prefix // in the table routes.DefaultTable

	record string
}

// Find looks for what the announcer with a socket has left, in the network namespace of the calling
// thread. It changes nothing.
func Find(ctx context.Context, socket string) (r Remains, err error) {
	r.record = Record(socket)
	left, err := l2.Find(ctx, r.record)
	r.Remains = left
	found, routesErr := routes.Find(ctx)
	r.Routes = found
	return r, errors.Join(err, routesErr)
}

// None reports whether nothing was found.
func (r *Remains) None() bool { return len(r.Tables)+len(r.Settings)+len(r.Routes) == 0 }

// Remove removes what was found. The announcer must not run.
func (r *Remains) Remove(ctx context.Context) error {
	var errs []error
	if len(r.Tables)+len(r.Settings) > 0 {
		errs = append(errs, l2.Remove(ctx, r.record))
	}
	if len(r.Routes) > 0 {
		errs = append(errs, routes.Remove(ctx))
	}
	return errors.Join(errs...)
}
