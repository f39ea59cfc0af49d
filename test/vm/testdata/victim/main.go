// Command victim ends in every way in which a program in the VM can end. The runner's tests on the
// host use it.
package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
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
	case "cat":
		for _, name := range os.Args[2:] {
			b, err := os.ReadFile(name)
			if err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			os.Stdout.Write(b)
		}
	case "run":
		out, err := exec.Command(os.Args[2], os.Args[3:]...).CombinedOutput()
		os.Stdout.Write(bytes.TrimSpace(out))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	case "ask": // a host of the network, over so many connections at once; nothing is read from the last one
		n, err := strconv.Atoi(os.Args[3])
		if err != nil {
			panic(err)
		}
		conns := make([]net.Conn, n)
		for i := range conns {
			if conns[i], err = net.DialTimeout("tcp", os.Args[2], 10*time.Second); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			fmt.Fprintln(conns[i], "question", i)
		}
		for _, c := range conns[:n-1] {
			answer := make([]byte, 100)
			c.SetDeadline(time.Now().Add(time.Minute))
			k, err := c.Read(answer)
			fmt.Printf("%s%v\n", answer[:k], err)
		}
		time.Sleep(time.Hour)
	case "connect":
		for _, addr := range os.Args[2:] {
			_, err := net.DialTimeout("tcp", addr, time.Minute)
			fmt.Println(err)
		}
	case "modules":
		b, err := os.ReadFile("/proc/modules")
		if err != nil {
			panic(err)
		}
		os.Stdout.Write(b)
	}
}
