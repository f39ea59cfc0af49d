package cli

import (
	"os"
	"path/filepath"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/vip/spec"
)

// configFile is the file that a configuration's path means: the path itself,
// or ironvip.toml in it.
func configFile(path string) string {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return filepath.Join(path, configs.ConfigName)
	}
	return path
}

func sourcesOf(c *configs.Config) []configs.Source {
	if c == nil {
		return nil
	}
	return c.Sources
}

func poolsOf(c *configs.Config) []spec.Pool {
	if c == nil {
		return nil
	}
	return c.SpecPools()
}
