// Command victim ends in every way in which a program in the VM can end. The runner's tests on the
// host use it.
package main

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

func main() {
	switch os.Args[1] {
	case "exit":
		code, err := strconv.Atoi(os.Args[2])
		if err != nil {
			panic(err)
		}
		fmt.Println("to stdout")
		fmt.Fprintln(os.Stderr, "to stderr")
		os.Exit(code)
	case "signal":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "hang":
		fmt.Println("hanging")
		time.Sleep(time.Hour)
	case "crash": // the kernel
		fmt.Println("crashing")
		if err := os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0); err != nil {
			panic(err)
		}
	case "flood": // bytes of every value, not a multiple of any block
		n, err := strconv.Atoi(os.Args[2])
		if err != nil {
			panic(err)
		}
		b := make([]byte, 0, n)
		for i := range n {
			b = append(b, byte(i%251))
		}
		os.Stdout.Write(b)
	}
}
