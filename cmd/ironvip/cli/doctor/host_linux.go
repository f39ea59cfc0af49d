package doctor

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ThisHost is the machine this process runs on.
func ThisHost(ipvs func() []Requirement) Host {
	return Host{
		Files: os.DirFS("/"),
		PID:   os.Getpid(),
		IPVS:  ipvs,
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
