package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce/l2/gate"
	"github.com/ironvip/ironvip/connect"
	"github.com/ironvip/ironvip/dns/resolved"
	"github.com/ironvip/ironvip/internal/bpf"
	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/plane/kernel/vips"
)

// ThisHost returns the machine of this process, a real server or a director.
func ThisHost(realServer bool) Host {
	return Host{
		Files:    os.DirFS("/"),
		PID:      os.Getpid(),
		Needs:    func(k *plane.Kind) []host.Finding { return k.NeedsOf(realServer) },
		Services: services,
		Firewall: firewall.Find,
		Has:      has,
		Cgroup:   func() error { _, err := connect.Cgroup(); return err },
		BPF:      bpf.Missing,
		Route:    route,
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

// has tries a feature of the kernel.
func has(f linux.Feature) (has, known bool) {
	switch f {
	case linux.Egress:
		has, err := gate.HasEgress(context.Background())
		return has, err == nil
	case linux.RunEstimation:
		if _, err := os.Stat("/proc/sys/net/ipv4/vs"); err != nil {
			return false, false // IPVS isn't loaded
		}
		_, err := os.Stat("/proc/sys/net/ipv4/vs/run_estimation")
		return err == nil, true
	case linux.NetnsCookie:
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return false, false
		}
		defer unix.Close(fd)
		_, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err == nil, true
	}
	return false, false
}

// route returns the device on the way to an address, and its MTU.
func route(a netip.Addr) (device string, mtu int, err error) {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil {
		return "", 0, err
	}
	if len(routes) == 0 {
		return "", 0, unix.ENETUNREACH
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", 0, err
	}
	return link.Attrs().Name, link.Attrs().MTU, nil
}

// services separates our IPVS services from others.
func services(device string) (Services, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	on, err := vips.Find(ctx, device)
	if err != nil {
		return Services{}, err
	}
	defer on.Close()
	found, err := ipvs.Find(ctx, ipvs.Options{Device: device, Owns: on.Has})
	if errors.Is(err, ipvs.ErrNoIPVS) || err == nil && found == nil {
		return Services{}, nil
	}
	if err != nil {
		return Services{}, err
	}
	defer found.Close()
	left, err := found.Left(ctx)
	return Services{Ours: left.Keys(), Others: left.Others}, err
}
