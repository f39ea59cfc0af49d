package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce/l2"
	"github.com/ironvip/ironvip/dns/resolved"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/ipvs"
)

// ThisHost returns the machine of this process, a real server or a director.
func ThisHost(realServer bool) Host {
	return Host{
		Files:    os.DirFS("/"),
		PID:      os.Getpid(),
		IPVS:     func() []ipvs.Finding { return ipvs.Check(realServer) },
		Services: services,
		Addrs:    addrs,
		Holders: func(addrs []netip.Addr) ([]l2.Holder, error) {
			return l2.Ask(context.Background(), addrs, time.Second)
		},
		Query:   query,
		Resolve: resolve,
		Bind:    bind,
		Resolved: func(s resolved.Settings) resolved.State {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			return resolved.Check(ctx, s)
		},
		Lookup: func(name string) error {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_, err := net.DefaultResolver.LookupTXT(ctx, name+".")
			return err
		},
		State: store.Check,
		Disk: func(path string) (Disk, error) {
			var s unix.Statfs_t
			if err := unix.Statfs(path, &s); err != nil {
				return Disk{}, &fs.PathError{Op: "statfs", Path: path, Err: err}
			}
			return Disk{Free: s.Bavail * uint64(s.Bsize), ReadOnly: s.Flags&unix.ST_RDONLY != 0}, nil
		},
		Writable: func(path string) (bool, error) {
			info, err := os.Stat(path)
			if err != nil {
				return false, err
			}
			if !info.IsDir() {
				return false, &fs.PathError{Op: "open", Path: path, Err: errors.New("not a directory")}
			}
			return unix.Access(path, unix.W_OK) == nil, nil
		},
	}
}

// addrs lists a device's addresses.
func addrs(device string) ([]netip.Addr, error) {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return nil, err
	}
	list, err := link.Addrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Addr().Unmap())
		}
	}
	return out, nil
}

// services separates our IPVS services from others.
func services(device string) (Services, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	found, err := ipvs.Find(ctx, ipvs.Options{Device: device})
	if err != nil {
		return Services{}, err
	}
	defer found.Close()
	s := Services{Others: found.Others}
	for _, mine := range found.Services {
		s.Ours = append(s.Ours, mine.Key)
	}
	return s, nil
}
