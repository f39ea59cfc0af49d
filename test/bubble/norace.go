//go:build !race

package bubble

func oneProcessor() (release func()) { return func() {} }
