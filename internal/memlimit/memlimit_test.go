package memlimit

import (
	"math"
	"testing"
	"testing/fstest"

	"github.com/ironvip/ironvip/test/expect"
)

func TestMemoryOfTheControlGroup(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"none":             {nil, math.MaxInt64},
		"version 1":        {map[string]string{"proc/self/cgroup": "4:memory:/system.slice/ironvip.service\n"}, math.MaxInt64},
		"unlimited":        {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, math.MaxInt64},
		"the root":         {map[string]string{"proc/self/cgroup": "0::/\n"}, math.MaxInt64},
		"of a container":   {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1000\n"}, 1000},
		"high before max":  {map[string]string{"proc/self/cgroup": "1:name=x:/y\n0::/a/b\n", "sys/fs/cgroup/a/b/memory.high": "500\n", "sys/fs/cgroup/a/b/memory.max": "800\n"}, 500},
		"of a group above": {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "300\n", "sys/fs/cgroup/a/b/memory.max": "800\n"}, 300},
	} {
		root := fstest.MapFS{}
		for file, text := range c.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		expect.Equal(t, groupLimit(root), c.want, name)
	}
}
