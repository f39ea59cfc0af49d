package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

// MakePolite sets arp_announce of an interface to 2, if it is less: the kernel's ARP requests on it
// then have an address of that interface as their sender. The former value is recorded first. It
// sends at most one message.
func (f *Follower) MakePolite(ctx context.Context, l Link) error {
	if l.arpAnnounce >= bestAddress {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	unrecorded := f.record.set(Setting{Index: l.Index, Name: l.Name, Before: l.arpAnnounce})
	if err := setArpAnnounce(ctx, f.conn, l.Index, bestAddress); err != nil {
		return fmt.Errorf("set arp_announce of %s: %w", l.Name, err)
	}
	if known, ok := f.host.links[l.Index]; ok { // the kernel sends no event
		known.arpAnnounce = bestAddress
		f.host.links[l.Index] = known
		f.update()
	}
	return unrecorded
}

// restoreOthers restores the settings of interfaces that are no longer announced on. A setting that
// fails is tried again with the next change. The caller holds mu or has the only reference.
func (f *Follower) restoreOthers() {
	for _, s := range f.record.settings() {
		l, exists := f.host.links[s.Index]
		if exists && slices.Contains(f.filter.Interfaces, l.Name) {
			continue
		}
		if restore(context.Background(), f.conn, s) != nil {
			continue
		}
		_ = f.record.remove(s.Index) // restoring it again would do no harm
		if exists && l.arpAnnounce == bestAddress {
			l.arpAnnounce = s.Before
			f.host.links[s.Index] = l
		}
	}
}

// Recorded returns the settings that are recorded in a file.
func Recorded(file string) []Setting { return openRecord(file).settings() }

// Restore restores the settings that are recorded in a file, in the network namespace of the calling
// thread. It is for the time after a Follower.
func Restore(ctx context.Context, file string) error {
	r := openRecord(file)
	all := r.settings()
	if len(all) == 0 {
		return nil
	}
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Counters{})
	if err != nil {
		return err
	}
	defer conn.Close()
	var errs []error
	for _, s := range all {
		if err := restore(ctx, conn, s); err != nil {
			errs = append(errs, fmt.Errorf("restore arp_announce of %s: %w", s.Name, err))
			continue
		}
		errs = append(errs, r.remove(s.Index))
	}
	return errors.Join(errs...)
}

// restore sets arp_announce to its former value, unless the interface has gone or somebody has set
// another value since.
func restore(ctx context.Context, conn *netlink.Conn, s Setting) error {
	var now Link
	err := conn.Query(ctx, func(b []byte) []byte {
		b = netlink.BeginMessage(b, unix.RTM_GETLINK, 0)
		return append(b, infoOf(s.Index)...)
	}, func(_ uint16, data []byte) error {
		now, _ = decodeLink(data)
		return nil
	})
	switch {
	case errors.Is(err, unix.ENODEV):
		return nil
	case err != nil:
		return err
	case now.Index != s.Index || now.arpAnnounce != bestAddress:
		return nil
	}
	return setArpAnnounce(ctx, conn, s.Index, s.Before)
}

func setArpAnnounce(ctx context.Context, conn *netlink.Conn, index int, value uint32) error {
	var failed error
	err := conn.Write(ctx, 1, func(b []byte, _ int) []byte { return appendArpAnnounce(b, index, value) }, func(_ int, err error) { failed = err })
	return errors.Join(err, failed)
}

// appendArpAnnounce appends the message that sets arp_announce of an interface. Unlike a write to
// /proc, it works in the network namespace of the socket, and with a read-only /proc/sys.
func appendArpAnnounce(b []byte, index int, value uint32) []byte {
	b = netlink.BeginMessage(b, unix.RTM_NEWLINK, 0)
	b = append(b, infoOf(index)...)
	b, spec := netlink.BeginNest(b, unix.IFLA_AF_SPEC|unix.NLA_F_NESTED)
	b, inet := netlink.BeginNest(b, unix.AF_INET|unix.NLA_F_NESTED)
	b, conf := netlink.BeginNest(b, inetConf|unix.NLA_F_NESTED)
	b = netlink.AppendAttr32(b, arpAnnounce, value)
	return netlink.EndNest(netlink.EndNest(netlink.EndNest(b, conf), inet), spec)
}

// infoOf returns the header of a message about one interface.
func infoOf(index int) []byte {
	info := make([]byte, ifinfoSize)
	binary.NativeEndian.PutUint32(info[4:], uint32(index))
	return info
}
