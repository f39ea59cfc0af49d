package resolved

import (
	"context"

	"github.com/vishvananda/netlink"

	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/sockopt"
)

// links is the kernel's list of interfaces.
type links interface {
	// Find returns the index of the interface with that name.
	Find(name string) (index int, err error)
	// Watch delivers the names of interfaces that were added, removed or changed, until ctx ends. It
	// is closed earlier when a change may have been lost.
	Watch(ctx context.Context) (<-chan string, error)
}

type kernelLinks struct{}

func (kernelLinks) Find(name string) (int, error) {
	if index := sockopt.DeviceIndex(name); index != 0 {
		return index, nil
	}
	return 0, errNoLink(name)
}

func (kernelLinks) Watch(ctx context.Context) (<-chan string, error) {
	ctx, cancel := context.WithCancel(ctx)
	in, out := make(chan netlink.LinkUpdate, 16), make(chan string)
	if err := netlink.LinkSubscribeWithOptions(in, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: func(error) { cancel() }}); err != nil {
		cancel()
		return nil, err
	}
	forwarding, ctx := parallel.NewGroup(ctx)
	forwarding.Go(func() error {
		defer cancel()
		defer close(out)
		for update := range in { // the library closes it at the end of ctx
			select {
			case out <- update.Attrs().Name:
			case <-ctx.Done():
			}
		}
		return nil
	})
	return out, nil
}
